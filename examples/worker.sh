#!/bin/sh
# A worker in shell: curl and jq are enough.
#
#   MAINSPRING_URL=http://127.0.0.1:7070 MAINSPRING_KEY=ms_… ./worker.sh [queue]
#
# It takes runs of the task "echo" and gives their payload back. The heartbeat runs beside the work; what it hears
# about cancels is written to a file that the work could look at.
set -eu
url=${MAINSPRING_URL:-http://127.0.0.1:7070}
queue=${1:-default}

post() { # path, body
    curl --silent --show-error --fail-with-body --max-time 40 -X POST "$url$1" \
        -H 'content-type: application/json' -H "authorization: Bearer ${MAINSPRING_KEY:-none}" -d "$2"
}

worker=$(post /v1/workers/register "{\"name\":\"shell-$$\",\"queues\":[\"$queue\"],\"tasks\":[\"echo\"]}" | jq -r .workerId)
echo "registered as $worker" >&2
trap 'post "/v1/workers/$worker/leave" "{}" > /dev/null; kill "$beating" 2> /dev/null; exit 0' INT TERM

# Silence for longer than the lease, 30 s, means that this worker is dead.
(while sleep 10; do post "/v1/workers/$worker/heartbeat" '{}' > /dev/null || exit; done) &
beating=$!

while :; do
    # Waits up to 5 s for something to do.
    claimed=$(post "/v1/workers/$worker/claim" '{"limit":1,"waitSeconds":5}')
    run=$(printf '%s' "$claimed" | jq -c '.runs[0] // empty')
    [ -n "$run" ] || continue
    id=$(printf '%s' "$run" | jq -r .runId)
    fence=$(printf '%s' "$run" | jq -r .fence)
    post "/v1/runs/$id/log" "{\"fence\":$fence,\"text\":\"working on $id\"}" > /dev/null
    if result=$(printf '%s' "$run" | jq -ce '.payload | if . == "fail" then error("told to") else . end'); then
        post "/v1/runs/$id/complete" "{\"fence\":$fence,\"result\":$result}" > /dev/null
    else
        post "/v1/runs/$id/fail" "{\"fence\":$fence,\"error\":\"it was told to fail\",\"retry\":false}" > /dev/null
    fi
    echo "did $id" >&2
done
