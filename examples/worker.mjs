// A worker in JavaScript, without any package: node 18 or newer.
//
//   MAINSPRING_URL=http://127.0.0.1:7070 MAINSPRING_KEY=ms_… node worker.mjs [queue]
//
// It takes up to ten runs of the task "echo" at once and gives their payload back, after {"sleep": 3} seconds if that is
// what it says. SIGTERM lets them end first.
import { setTimeout as sleep } from 'node:timers/promises'

const url = process.env.MAINSPRING_URL ?? 'http://127.0.0.1:7070'
const queue = process.argv[2] ?? 'default'
const slots = 10

// Asks again for a minute where nobody answers, and after 429 and 503 when Retry-After says.
async function post(path, body = {}) {
  const giveUp = Date.now() + 60_000
  for (;;) {
    let problem, after = 1
    try {
      const response = await fetch(url + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: `Bearer ${process.env.MAINSPRING_KEY ?? 'none'}` },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(40_000),
      })
      const answer = await response.json()
      if (response.ok) return answer
      problem = Object.assign(new Error(answer.detail ?? answer.title), { status: response.status })
      after = Number(response.headers.get('retry-after')) || 1
    } catch (error) { problem ??= error }
    if ((problem.status && ![429, 503].includes(problem.status)) || Date.now() > giveUp) throw problem
    await sleep(after * 1000)
  }
}

async function echo(payload, signal) {
  if (payload === 'fail') throw new Error('told to')
  if (payload?.sleep) await sleep(payload.sleep * 1000, undefined, { signal })
  return payload
}

const held = new Map()
let worker, lastClaim, leaving = false
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => { leaving = true })

async function register() {
  for (const stop of held.values()) stop.abort()
  worker = await post('/v1/workers/register', { name: `node-${process.pid}`, queues: [queue], tasks: ['echo'], leaseSeconds: 15 })
  lastClaim = 0
  console.error(`registered as ${worker.workerId}`)
}

// Keeps the lease. It names what runs here: any other run of an older claim is given to somebody else.
async function beat() {
  for (;;) {
    await sleep(worker.heartbeatSeconds * 1000)
    try {
      const told = await post(`/v1/workers/${worker.workerId}/heartbeat`, { held: [...held.keys()], claim: lastClaim })
      if (told.draining) leaving = true
      // Of a lost lease the next claim hears, too; until then nothing should run twice.
      for (const run of told.alive ? told.cancel : held.keys()) held.get(run)?.abort()
    } catch (error) { console.error(`heartbeat: ${error.message}`) }
  }
}

async function work(run) {
  const stop = new AbortController()
  held.set(run.runId, stop)
  let how = 'complete', body
  try {
    body = { result: await echo(run.payload, stop.signal) }
  } catch (error) {
    how = stop.signal.aborted ? 'cancelled' : 'fail'
    body = stop.signal.aborted ? {} : { error: String(error), retry: false }
  }
  try {
    await post(`/v1/runs/${run.runId}/${how}`, { fence: run.fence, ...body })
    console.error(`${how} ${run.runId}`)
  } catch (error) {
    // 409: somebody else has the run, and whatever we did does not count.
    console.error(`${how} ${run.runId}: ${error.message}`)
  }
  held.delete(run.runId)
}

await register()
beat()
while (!leaving) {
  try {
    const told = await post(`/v1/workers/${worker.workerId}/claim`, { limit: slots - held.size, waitSeconds: 1 })
    lastClaim = told.claim
    if (told.draining) leaving = true
    for (const run of told.runs) work(run)
  } catch (error) {
    console.error(`claim: ${error.message}`)
    // 409: the lease was lost.
    await (error.status === 409 ? register() : sleep(1000))
  }
  while (held.size >= slots) await sleep(20)
}
while (held.size) await sleep(20)
await post(`/v1/workers/${worker.workerId}/leave`)
process.exit()
