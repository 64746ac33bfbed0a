// Submits, reads, cancels and works with the generated Go client.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"example.com/acme/mainspring"
)

func must[T any](value T, _ any, err error) T {
	if err != nil {
		var failed *mainspring.GenericOpenAPIError
		if errors.As(err, &failed) {
			fmt.Fprintln(os.Stderr, string(failed.Body()))
		}
		panic(err)
	}
	return value
}

func main() {
	ctx, queue := context.Background(), "clients-go"
	configuration := mainspring.NewConfiguration()
	configuration.Servers[0].URL = os.Args[1]
	client := mainspring.NewAPIClient(configuration)

	job := must(client.JobsAPI.CreateJob(ctx).JobIn(mainspring.JobIn{
		Task: mainspring.PtrString("greet"), Queue: &queue, Timeout: mainspring.PtrString("30s"),
		Payload: map[string]any{"name": "Ada"},
	}).Execute())
	later := must(client.JobsAPI.CreateJob(ctx).JobIn(mainspring.JobIn{
		Task: mainspring.PtrString("greet"), Queue: &queue, Delay: mainspring.PtrString("1h"),
	}).Execute())
	must(client.JobsAPI.CancelJob(ctx, later.JobId).Execute())

	breaker := mainspring.NewBreakerIn()
	breaker.SetFailures(3)
	catchUp := mainspring.NewCatchUpIn()
	catchUp.SetMode("all")
	nightly := must(client.JobsAPI.CreateJob(ctx).JobIn(mainspring.JobIn{
		Name: mainspring.PtrString("nightly go"), Task: mainspring.PtrString("greet"), Queue: &queue,
		CronExpression: mainspring.PtrString("0 2 * * *"), CatchUp: catchUp,
		Breaker: *mainspring.NewNullableBreakerIn(breaker), Tags: []string{"kept"}, Payload: "kept",
	}).Execute())
	must(client.JobsAPI.ChangeJob(ctx, nightly.JobId).JobPatch(mainspring.JobPatch{
		Priority: mainspring.PtrInt32(3),
	}).Execute())

	listed := []string{}
	for _, item := range must(client.JobsAPI.ListJobs(ctx).Queue(queue).Limit(10).Execute()).Items {
		listed = append(listed, item.JobId)
	}

	worker := must(client.RemoteWorkersAPI.Register(ctx).RegisterIn(
		*mainspring.NewRegisterIn("worker in Go", []string{queue}),
	).Execute())
	claim := mainspring.NewClaimIn()
	claim.SetWaitSeconds(10)
	claimed := must(client.RemoteWorkersAPI.Claim(ctx, worker.WorkerId).ClaimIn(*claim).Execute())
	run := claimed.Runs[0]
	heartbeat := must(client.RemoteWorkersAPI.Heartbeat(ctx, worker.WorkerId).HeartbeatIn(
		*mainspring.NewHeartbeatIn([]string{run.RunId}, int32(claimed.Claim)),
	).Execute())
	done := mainspring.NewCompleteIn(run.Fence)
	done.SetResult("Hello " + run.Payload.(map[string]any)["name"].(string))
	reported := must(client.RemoteWorkersAPI.Complete(ctx, run.RunId).CompleteIn(*done).Execute())

	var failed *mainspring.GenericOpenAPIError
	if _, _, err := client.JobsAPI.GetJob(ctx, strings.Repeat("0", 32)).Execute(); !errors.As(err, &failed) {
		panic("a job that does not exist was found")
	}
	problem := failed.Model().(mainspring.Problem)

	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"job": job.JobId, "cancelled": later.JobId, "recurring": nightly.JobId,
		"within": nightly.Breaker.GetWithin(), "mode": nightly.CatchUp.GetMode(), "listed": listed,
		"fence": run.Fence, "alive": heartbeat.Alive, "answer": reported.Answer, "problem": problem.Title,
		"status": must(client.JobsAPI.GetJob(ctx, job.JobId).Execute()).Status,
		"result": must(client.RunsAPI.GetRun(ctx, run.RunId).Execute()).Result,
	})
}
