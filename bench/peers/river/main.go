// A worker and a submitter of River. See bench/peers/protocol.md.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const batchSize = 1000

var (
	ctx       = context.Background()
	directory = os.Getenv("PEER_DIRECTORY")
)

type Nothing struct {
	UserID int    `json:"user_id"`
	Email  string `json:"email"`
	Note   string `json:"note"`
}

func (Nothing) Kind() string { return "nothing" }

type Stamp struct {
	N   int64 `json:"n"`
	Due int64 `json:"due"`
}

func (Stamp) Kind() string { return "stamp" }

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

func main() {
	pool := must(pgxpool.New(ctx, os.Getenv("PEER_URL")))
	defer pool.Close()
	if os.Args[1] == "worker" {
		work(pool)
		return
	}
	must(os.Stdout.Write(must(json.Marshal(submit(pool, os.Args[2], os.Args[3:])))))
}

// The settings of `river bench`.
func work(pool *pgxpool.Pool) {
	var executed atomic.Int64
	stamps := must(os.OpenFile(own("stamps"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600))
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[Nothing]) error {
		executed.Add(1)
		return nil
	}))
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[Stamp]) error {
		record := make([]byte, 32)
		binary.LittleEndian.PutUint64(record[24:], uint64(time.Now().UnixMicro()))
		binary.LittleEndian.PutUint64(record, uint64(job.Args.N))
		binary.LittleEndian.PutUint64(record[16:], uint64(job.Args.Due))
		executed.Add(1)
		_, err := stamps.Write(record)
		return err
	}))
	client := must(river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            logger(),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2_000}},
		Workers:           workers,
	}))
	check(client.Start(ctx))
	go func() {
		counts := must(os.Create(own("count")))
		number := make([]byte, 8)
		for range time.Tick(20 * time.Millisecond) {
			binary.LittleEndian.PutUint64(number, uint64(executed.Load()))
			must(counts.WriteAt(number, 0))
		}
	}()
	fmt.Fprintln(os.Stderr, "mainspring: ready")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	check(client.Stop(ctx))
}

func own(kind string) string {
	return filepath.Join(directory, strconv.Itoa(os.Getpid())+"."+kind)
}

func submit(pool *pgxpool.Pool, what string, words []string) any {
	numbers := make([]int64, 0, 2)
	for _, word := range words {
		numbers = append(numbers, int64(must(strconv.ParseFloat(word, 64))))
	}
	if what == "install" {
		migrator := must(rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: logger()}))
		must(migrator.Migrate(ctx, rivermigrate.DirectionUp, nil))
		return nil
	}
	client := must(river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: logger()}))
	switch what {
	case "fill":
		for left := numbers[0]; left > 0; left -= batchSize {
			must(client.InsertManyFast(ctx, nothings(min(left, batchSize))))
		}
		return numbers[0]
	case "single":
		return timed(words[0], 1, single(client))
	case "concurrent":
		return timed(words[0], 64, single(client))
	case "batches":
		return timed(words[0], 1, many(client))
	case "ahead":
		return ahead(client, numbers[0])
	case "idle":
		for n := range numbers[0] {
			time.Sleep(20*time.Millisecond + rand.N(40*time.Millisecond))
			must(client.Insert(ctx, Stamp{N: n, Due: time.Now().UnixMicro()}, nil))
		}
		return numbers[0]
	case "herd":
		params := make([]river.InsertManyParams, 0, numbers[0])
		for n := range numbers[0] {
			params = append(params, river.InsertManyParams{
				Args:       Stamp{N: n, Due: numbers[1]},
				InsertOpts: &river.InsertOpts{ScheduledAt: time.UnixMicro(numbers[1])},
			})
		}
		must(client.InsertManyFast(ctx, params))
		return numbers[0]
	}
	panic("unknown command: " + what)
}

var payload = sync.OnceValue(func() (args Nothing) {
	check(json.Unmarshal([]byte(os.Getenv("PEER_PAYLOAD")), &args))
	return args
})

func nothings(count int64) []river.InsertManyParams {
	params := make([]river.InsertManyParams, count)
	for i := range params {
		params[i].Args = payload()
	}
	return params
}

func single(client *river.Client[pgx.Tx]) func() int64 {
	return func() int64 {
		must(client.Insert(ctx, payload(), nil))
		return 1
	}
}

func many(client *river.Client[pgx.Tx]) func() int64 {
	return func() int64 {
		must(client.InsertManyFast(ctx, nothings(batchSize)))
		return batchSize
	}
}

func timed(seconds string, tasks int, each func() int64) map[string]float64 {
	each()
	var jobs atomic.Int64
	var group sync.WaitGroup
	used, started := processorSeconds(), time.Now()
	until := started.Add(time.Duration(must(strconv.ParseFloat(seconds, 64)) * float64(time.Second)))
	for range tasks {
		group.Go(func() {
			for time.Now().Before(until) {
				jobs.Add(each())
			}
		})
	}
	group.Wait()
	return map[string]float64{
		"jobs":              float64(jobs.Load()),
		"seconds":           time.Since(started).Seconds(),
		"processor_seconds": processorSeconds() - used,
	}
}

func ahead(client *river.Client[pgx.Tx], backlog int64) int64 {
	var stop atomic.Bool
	go func() {
		_, _ = io.ReadAll(os.Stdin)
		stop.Store(true)
	}()
	submitted := int64(0)
	for !stop.Load() {
		if submitted-executed()+batchSize > backlog {
			time.Sleep(5 * time.Millisecond)
		} else {
			submitted += many(client)()
		}
	}
	return submitted
}

func executed() (sum int64) {
	for _, path := range must(filepath.Glob(filepath.Join(directory, "*.count"))) {
		if data := must(os.ReadFile(path)); len(data) == 8 {
			sum += int64(binary.LittleEndian.Uint64(data))
		}
	}
	return sum
}

func processorSeconds() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
