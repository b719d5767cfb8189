-- What every load script shares: requests of the AWS JSON 1.0 protocol as finished strings, counters, and the report.
--
-- wrk runs `request` and `response` per thread, not per connection, and does not say which request a response answers.
-- So a script counts what it asked for and recognises an answer by what only that answer can contain. Everything that
-- can be built once is built in `init`; searches are plain, so that the load generator stays cheaper than the server.
--
-- Environment: BENCH_QUEUE_URL (a QueueUrl as the server gave it), BENCH_CONSTANT=1 (the server answers a constant, so
-- answers are taken to be what the real ones would have been), BENCH_HANDLES (a file of receipt handles, one per line),
-- BENCH_AUTHORIZATION (a header for servers that find the service in it and in nothing else), BENCH_KEY (requests are
-- signed, see sign.lua), BENCH_GROUPS (sends go round so many message groups), BENCH_FIFO=1 (each send brings a
-- deduplication id of its own).

local sign = require("sign")
local sqs = {}

sqs.queue_url = os.getenv("BENCH_QUEUE_URL") or "http://127.0.0.1/000000000000/bench"
sqs.constant = os.getenv("BENCH_CONSTANT") == "1"
sqs.handles_file = os.getenv("BENCH_HANDLES")
sqs.authorization = os.getenv("BENCH_AUTHORIZATION")
sqs.body = string.rep("x", 256)
sqs.constant_handle = string.rep("h", 64)
sqs.counters = { "sent", "receives", "received", "deletes", "deleted", "short", "refused", "spent" }

for _, name in ipairs(sqs.counters) do _G[name] = 0 end

function sqs.head(action)
  local authorization = sqs.authorization and "\r\nAuthorization: " .. sqs.authorization or ""
  return "POST / HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. authorization
    .. "\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS." .. action .. "\r\nContent-Length: "
end

function sqs.request(action, members)
  return sqs.builder(action)(members)
end

-- A function that builds requests of one action whose members vary, from parts that do not.
function sqs.builder(action)
  local head = sqs.head(action)
  local opening = '\r\n\r\n{"QueueUrl":"' .. sqs.queue_url .. '"'
  local fixed = #opening - 4 + 1
  local signer = sign.signer(action)
  if signer then
    return function(members)
      return head .. (fixed + #members) .. signer(opening:sub(5) .. members .. "}") .. opening .. members .. "}"
    end
  end
  return function(members)
    return head .. (fixed + #members) .. opening .. members .. "}"
  end
end

-- A function that gives SendMessage requests: the same one each time, unless groups or deduplication ids vary.
function sqs.sender()
  local message = ',"MessageBody":"' .. sqs.body .. '"'
  local groups, fifo = tonumber(os.getenv("BENCH_GROUPS")), os.getenv("BENCH_FIFO") == "1"
  if not groups then
    local constant = sqs.request("SendMessage", message)
    return function() return constant end
  end
  local build, turn = sqs.builder("SendMessage"), 0
  return function()
    turn = turn + 1
    local members = message .. ',"MessageGroupId":"g' .. turn % groups .. '"'
    if fifo then members = members .. ',"MessageDeduplicationId":"' .. turn .. '"' end
    return build(members)
  end
end

local find, sub = string.find, string.sub

-- The next receipt handle in `body` at or after `from`, and where it ends.
function sqs.handle(body, from)
  local name = find(body, '"ReceiptHandle"', from, true)
  if not name then return nil end
  local opening = find(body, '"', name + 15, true)
  local closing = find(body, '"', opening + 1, true)
  return sub(body, opening + 1, closing - 1), closing
end

function sqs.count(body, word)
  local n, at = 0, find(body, word, 1, true)
  while at do
    n = n + 1
    at = find(body, word, at + #word, true)
  end
  return n
end

local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
end

local function total(name)
  local sum = 0
  for _, thread in ipairs(threads) do sum = sum + (thread:get(name) or 0) end
  return sum
end

function done(summary, latency, requests)
  local fields = {}
  local function put(name, value) fields[#fields + 1] = string.format('"%s":%.0f', name, value) end
  put("requests", summary.requests)
  put("duration_us", summary.duration)
  put("p50_us", latency:percentile(50))
  put("p99_us", latency:percentile(99))
  put("max_us", latency.max)
  for _, name in ipairs({ "connect", "read", "write", "status", "timeout" }) do
    put("errors_" .. name, summary.errors[name])
  end
  for _, name in ipairs(sqs.counters) do put(name, total(name)) end
  io.write("BENCH {", table.concat(fields, ","), "}\n")
end

return sqs
