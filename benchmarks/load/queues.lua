-- The cycle over BENCH_QUEUES queues in turn, whose URLs are BENCH_QUEUE_URL and a number: send → receive → delete, as
-- in cycle.lua, with counts for each queue.

local sqs = require("sqs")
local count = tonumber(os.getenv("BENCH_QUEUES"))
local queues, turn = {}, 0
local find = string.find
local waiting = {}

function init(args)
  local base = sqs.queue_url
  for i = 0, count - 1 do
    sqs.queue_url = base .. i
    queues[i] = {
      send = sqs.repeated("SendMessage", ',"MessageBody":"' .. i .. " " .. sqs.body .. '"'),
      receive = sqs.repeated("ReceiveMessage", ',"MaxNumberOfMessages":1'),
      delete = sqs.builder("DeleteMessage"),
    }
  end
end

local handles, first, last = {}, 1, 0
local ready, ready_first, ready_last = {}, 1, 0

function request()
  if first <= last then
    local each = handles[first]
    handles[first] = nil
    first = first + 1
    deletes = deletes + 1
    return queues[each[1]].delete(',"ReceiptHandle":"' .. each[2] .. '"')
  end
  if ready_last - ready_first >= 300 then
    local queue = ready[ready_first]
    ready[ready_first] = nil
    ready_first = ready_first + 1
    receives = receives + 1
    return queues[queue].receive()
  end
  turn = (turn + 1) % count
  ready_last = ready_last + 1
  ready[ready_last] = turn
  sent = sent + 1
  return queues[turn].send()
end

function response(status, headers, body)
  if status ~= 200 then return end
  local handle = sqs.handle(body, 1)
  if handle then
    received = received + 1
    local at = find(body, '"Body":"', 1, true) or find(body, '"Body": "', 1, true)
    last = last + 1
    handles[last] = { tonumber(body:match('"Body"%s*:%s*"(%d+) ')), handle }
  end
end
