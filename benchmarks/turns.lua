-- For wrk: asks so many models for a prediction in turns, or GETs the address if that is 0; prints as post.lua.

local requests = {}
local last = 0

function init(arguments)
  local models = tonumber(arguments[1])
  if models == 0 then
    requests[1] = wrk.format("GET", wrk.path)
  end
  for number = 0, models - 1 do
    local path = string.format("/v1/models/m%04d:predict", number)
    requests[number + 1] = wrk.format("POST", path, { ["content-type"] = "application/json" }, '{"instances": [1.0]}')
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
