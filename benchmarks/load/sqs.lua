-- Shared by every load script: requests of the AWS JSON 1.0 protocol as finished strings, counters, and the report.
--
-- wrk runs `request` and `response` per thread, not per connection, and does not match responses to requests. So a
-- script counts its requests and recognises a response by its content. Everything that can be built once is built in
-- `init`; searches are plain, so that the load generator stays cheaper than the server.
--
-- Environment: BENCH_QUEUE_URL (a QueueUrl of the server), BENCH_CONSTANT=1 (the server replies with a constant, which is
-- counted as the real reply), BENCH_HANDLES (a file of receipt handles, one per line), BENCH_AUTHORIZATION (a header for
-- servers that find the service only there), BENCH_KEY (requests are signed, see sign.lua), BENCH_GROUPS (number of
-- message groups of the sends, in turn), BENCH_FIFO=1 (each send has a new deduplication id), BENCH_HEADS=sdk (requests
-- have the headers of an AWS SDK; no two are alike).

local sign = require("sign")
local sqs = {}

sqs.queue_url = os.getenv("BENCH_QUEUE_URL") or "http://127.0.0.1/000000000000/bench"
sqs.constant = os.getenv("BENCH_CONSTANT") == "1"
sqs.handles_file = os.getenv("BENCH_HANDLES")
sqs.authorization = os.getenv("BENCH_AUTHORIZATION")
sqs.as_sdk = os.getenv("BENCH_HEADS") == "sdk"
sqs.body = string.rep("x", 256)
sqs.constant_handle = string.rep("h", 64)
sqs.counters = { "sent", "receives", "received", "deletes", "deleted", "short", "refused", "spent" }

for _, name in ipairs(sqs.counters) do _G[name] = 0 end

function sqs.head(action)
  local authorization = sqs.authorization and "\r\nAuthorization: " .. sqs.authorization or ""
  return "POST / HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. authorization
    .. "\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS." .. action .. "\r\nContent-Length: "
end

local format = string.format
local built, date, signatures = 0, nil, nil

-- Two requests of an SDK differ in date, signature and invocation id. A signature is 64 invalid hex digits; 256 of them
-- are used in turn, so that they cost wrk nothing.
local function next_request()
  if built % 256 == 0 then date = os.date("!%Y%m%dT%H%M%SZ") end
  if not signatures then
    math.randomseed(os.time())
    signatures = {}
    for i = 0, 255 do signatures[i] = ("xxxxxxxx"):rep(8):gsub("x", function() return format("%x", math.random(0, 15)) end) end
  end
  built = built + 1
  return date, signatures[built % 256], format("6f1c2b0e-93d4-4a57-8c1e-%012x", built)
end

-- A function that returns the headers of a request as boto3 writes them, up to the value of Content-Length.
local function sdk_head(action)
  local opening = "POST / HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\nAccept-Encoding: identity"
    .. "\r\nX-Amz-Target: AmazonSQS." .. action .. "\r\nContent-Type: application/x-amz-json-1.0"
    .. "\r\nx-amzn-query-mode: true\r\nUser-Agent: Boto3/1.40.0 md/Botocore#1.40.0 ua/2.1 os/linux#6.1.0 "
    .. "md/arch#x86_64 lang/python#3.12.3 md/pyimpl#CPython m/Z,b,D,e cfg/retry-mode#standard Botocore/1.40.0"
    .. "\r\nX-Amz-Date: "
  local authorization = "\r\nAuthorization: AWS4-HMAC-SHA256 Credential=AKIDBENCHMARKBENCH01/"
    .. os.date("!%Y%m%d") .. "/us-east-1/sqs/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-target;x-amzn-query-mode, Signature="
  local ending = "\r\namz-sdk-request: attempt=1; max=3\r\nContent-Length: "
  return function()
    local at, signature, id = next_request()
    return opening .. at .. authorization .. signature .. "\r\namz-sdk-invocation-id: " .. id .. ending
  end
end

-- A function that gives requests with these members: one finished string, or in the heads of SDKs one after another.
function sqs.repeated(action, members)
  local build = sqs.builder(action)
  if sqs.as_sdk then return function() return build(members) end end
  local constant = build(members)
  return function() return constant end
end

-- A function that builds requests of one action whose members vary, from parts that do not.
function sqs.builder(action)
  local opening = '\r\n\r\n{"QueueUrl":"' .. sqs.queue_url .. '"'
  local fixed = #opening - 4 + 1
  if sqs.as_sdk then
    local next_head = sdk_head(action)
    return function(members)
      return next_head() .. (fixed + #members) .. opening .. members .. "}"
    end
  end
  local head = sqs.head(action)
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
  if not groups then return sqs.repeated("SendMessage", message) end
  local build, turn, run = sqs.builder("SendMessage"), 0, (os.getenv("BENCH_RUN") or "") .. "-"
  return function()
    turn = turn + 1
    local members = message .. ',"MessageGroupId":"g' .. run .. turn % groups .. '"'
    if fifo then members = members .. ',"MessageDeduplicationId":"' .. run .. turn .. '"' end
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
