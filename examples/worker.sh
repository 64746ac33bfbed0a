#!/bin/sh
# A worker in shell: curl and jq are enough.
#
#   MAINSPRING_URL=http://127.0.0.1:7070 MAINSPRING_KEY=ms_… ./worker.sh [queue]
#
# It takes runs of the task "echo", one at a time, and gives their payload back, after {"sleep": 3} seconds if that is
# what it says. A heartbeat beside the work keeps the lease and stops what was cancelled. SIGTERM lets the run end first.
set -u
url=${MAINSPRING_URL:-http://127.0.0.1:7070}
queue=${1:-default}
here=$(mktemp -d)

# Asks again where nobody answers, and after 429 and 503 when Retry-After says.
post() { # path, body
    curl --silent --show-error --fail --max-time 40 --retry 8 --retry-max-time 60 --retry-connrefused \
        -H 'content-type: application/json' -H "authorization: Bearer ${MAINSPRING_KEY:-none}" -d "$2" "$url$1"
}

hold() { # runs, claim: what the next heartbeat says. Any other run of an older claim is given to somebody else.
    printf '{"held":%s,"claim":%s}' "$1" "$2" > "$here/new" && mv "$here/new" "$here/held"
}

heartbeat() { # ends with its parent: otherwise the lease of a dead worker would live on
    while sleep "$1" && kill -0 $$ 2> /dev/null; do
        beat=$(post "/v1/workers/$worker/heartbeat" "$(cat "$here/held")") || continue
        case $beat in *'"draining":true'*) : > "$here/stop" ;; esac
        case $beat in *'"alive":false'*)
            # Somebody else has our runs by now.
            : > "$here/stop"
            cat "$here"/*.task 2> /dev/null | xargs kill 2> /dev/null ;;
        esac
        for run in $(printf '%s' "$beat" | jq -r '.cancel[]'); do
            : > "$here/$run.cancelled"
            kill "$(cat "$here/$run.task")" 2> /dev/null
        done
    done
}

work() { # payload
    sleep "$(printf '%s' "$1" | jq '.sleep? // 0')"
    printf '%s' "$1" | jq -ce 'if . == "fail" then error("told to") else . end'
}

registered=$(post /v1/workers/register "{\"name\":\"shell-$$\",\"queues\":[\"$queue\"],\"tasks\":[\"echo\"],\"leaseSeconds\":15}") || exit
worker=$(printf '%s' "$registered" | jq -r .workerId)
echo "registered as $worker" >&2
hold '[]' 0
heartbeat "$(printf '%s' "$registered" | jq .heartbeatSeconds)" &
beating=$!
leaving=
trap 'leaving=1' INT TERM
trap 'kill "$beating"; post "/v1/workers/$worker/leave" "{}" > /dev/null; rm -rf "$here"' EXIT

while [ -z "$leaving" ] && [ ! -e "$here/stop" ]; do
    # Waits up to 5 s for something to do. If the lease was lost, the next heartbeat says so.
    claimed=$(post "/v1/workers/$worker/claim" '{"limit":1,"waitSeconds":5}') || { sleep 1; continue; }
    case $claimed in *'"draining":true'*) break ;; esac
    claim=$(printf '%s' "$claimed" | jq .claim)
    run=$(printf '%s' "$claimed" | jq -c '.runs[0] // empty')
    [ -n "$run" ] || { hold '[]' "$claim"; continue; }
    id=$(printf '%s' "$run" | jq -r .runId)
    fence=$(printf '%s' "$run" | jq .fence)
    work "$(printf '%s' "$run" | jq -c .payload)" > "$here/result" &
    task=$!
    echo "$task" > "$here/$id.task"
    hold "[\"$id\"]" "$claim"
    wait "$task"; code=$?
    # A signal to this worker ends the wait early, not the work.
    while kill -0 "$task" 2> /dev/null; do wait "$task"; code=$?; done
    if [ "$code" = 0 ]; then
        how=complete body="{\"fence\":$fence,\"result\":$(cat "$here/result")}"
    elif [ -e "$here/$id.cancelled" ]; then
        how=cancelled body="{\"fence\":$fence}"
    else
        how=fail body="{\"fence\":$fence,\"error\":\"it ended with $code\",\"retry\":false}"
    fi
    # 409: somebody else has the run, and whatever we did does not count.
    post "/v1/runs/$id/$how" "$body" > /dev/null && echo "$how $id" >&2
    rm -f "$here/$id".*
    hold '[]' "$claim"
done
