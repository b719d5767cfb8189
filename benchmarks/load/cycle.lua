-- The cycle, unbatched: send → receive → delete.
--
-- A pending handle is deleted first; otherwise a message whose send was acknowledged is received; otherwise one is
-- sent. So every receive has an acknowledged message to take, and an empty reply is the server's fault. The replies to
-- an empty receive and to a delete look the same: `short` counts the receives without a message, less those that may be
-- in progress at the end.

local sqs = require("sqs")
local handles, first, last = {}, 1, 0
local acknowledged, turn = 0, 0
local send, receive, delete
local find = string.find

function init(args)
  send = sqs.sender()
  receive = sqs.repeated("ReceiveMessage", ',"MaxNumberOfMessages":1')
  delete = sqs.builder("DeleteMessage")
end

function request()
  if first <= last then
    local handle = handles[first]
    handles[first] = nil
    first = first + 1
    deletes = deletes + 1
    return delete(',"ReceiptHandle":"' .. handle .. '"')
  end
  if acknowledged > 0 then
    acknowledged = acknowledged - 1
    receives = receives + 1
    return receive()
  end
  return send()
end

local function keep(handle)
  received = received + 1
  last = last + 1
  handles[last] = handle
end

local function pretend()
  turn = (turn + 1) % 3
  if turn == 1 then
    sent = sent + 1
    acknowledged = acknowledged + 1
  elseif turn == 2 then
    keep(sqs.constant_handle)
  end
end

function response(status, headers, body)
  if status ~= 200 then return end
  local handle = sqs.handle(body, 1)
  if handle then
    keep(handle)
  elseif find(body, '"MD5OfMessageBody"', 1, true) then
    sent = sent + 1
    acknowledged = acknowledged + 1
  elseif sqs.constant then
    pretend()
  end
end
