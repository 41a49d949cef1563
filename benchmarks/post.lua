-- For wrk: POSTs the bodies of a folder in turns, and prints what happened as one line of JSON.
-- Arguments: the folder (its files are named 0, 1, 2, …), how many there are, their content type.

local requests = {}
local last = 0

function init(arguments)
  local folder, count, content_type = arguments[1], tonumber(arguments[2]), arguments[3]
  for number = 0, count - 1 do
    local file = assert(io.open(folder .. "/" .. number, "rb"))
    requests[number + 1] = wrk.format("POST", wrk.path, { ["content-type"] = content_type }, file:read("*a"))
    file:close()
  end
end

function request()
  last = last % #requests + 1
  return requests[last]
end

function done(summary, latency, _)
  local errors = summary.errors
  local unanswered = errors.connect + errors.read + errors.write + errors.timeout
  print(string.format(
    '{"good": %d, "bad": %d, "microseconds": %d, "p50": %.1f, "p99": %.1f, "mean": %.1f}',
    summary.requests - errors.status, unanswered + errors.status, summary.duration, latency:percentile(50), latency:percentile(99), latency.mean))
end
