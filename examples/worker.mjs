// A worker in JavaScript, without any package: node 18 or newer.
//
//   MAINSPRING_URL=http://127.0.0.1:7070 MAINSPRING_KEY=ms_… node worker.mjs [queue]
//
// It takes up to ten runs of the task "echo" at once and gives their payload back.
const url = process.env.MAINSPRING_URL ?? 'http://127.0.0.1:7070'
const queue = process.argv[2] ?? 'default'
const slots = 10

async function post(path, body = {}) {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${process.env.MAINSPRING_KEY ?? 'none'}` },
    body: JSON.stringify(body),
  })
  const answer = await response.json()
  if (!response.ok) throw Object.assign(new Error(answer.detail ?? answer.title), { status: response.status })
  return answer
}

async function echo(payload) {
  if (payload === 'fail') throw new Error('told to')
  return payload
}

const { workerId, heartbeatSeconds } = await post('/v1/workers/register', {
  name: `node-${process.pid}`, queues: [queue], tasks: ['echo'],
})
console.error(`registered as ${workerId}`)

const held = new Map()
let lastClaim = 0
let leaving = false
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => { leaving = true })

// Naming what it holds lets the server give back a claim whose answer was lost.
const beating = setInterval(async () => {
  try {
    const beat = await post(`/v1/workers/${workerId}/heartbeat`, { held: [...held.keys()], claim: lastClaim })
    if (!beat.alive) { console.error('the lease was lost'); process.exit(1) }
    if (beat.draining) leaving = true
    for (const run of beat.cancel) held.get(run)?.abort()
  } catch (error) { console.error(`heartbeat: ${error.message}`) }
}, heartbeatSeconds * 1000)

async function work(run) {
  const stop = new AbortController()
  held.set(run.runId, stop)
  try {
    const result = await echo(run.payload, stop.signal)
    await post(`/v1/runs/${run.runId}/complete`, { fence: run.fence, result })
  } catch (error) {
    // 409: somebody else has the run now, and whatever we did does not count.
    if (error.status !== 409) {
      await post(`/v1/runs/${run.runId}/fail`, { fence: run.fence, error: String(error), retry: false })
    }
  } finally {
    held.delete(run.runId)
  }
  console.error(`did ${run.runId}`)
}

while (!leaving) {
  const { claim, runs } = await post(`/v1/workers/${workerId}/claim`, { limit: slots - held.size, waitSeconds: 1 })
  lastClaim = claim
  for (const run of runs) work(run)
  while (held.size >= slots) await new Promise((resolve) => setTimeout(resolve, 20))
}
clearInterval(beating)
while (held.size) await new Promise((resolve) => setTimeout(resolve, 20))
await post(`/v1/workers/${workerId}/leave`)
