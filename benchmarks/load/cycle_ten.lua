-- The cycle by ten: SendMessageBatch of ten → ReceiveMessage of ten → DeleteMessageBatch.
--
-- As cycle.lua, counting messages: a receive of ten is sent when ten acknowledged messages wait; messages that it does
-- not return are received later (`short` counts the receives that return fewer than ten, which the protocol allows).
-- `refused` counts the failed entries of successful replies.

local sqs = require("sqs")
local deletions, first, last = {}, 1, 0
local acknowledged, turn = 0, 0
local send, receive, delete
local find, concat = string.find, table.concat

function init(args)
  local entries = {}
  for i = 0, 9 do entries[i + 1] = '{"Id":"' .. i .. '","MessageBody":"' .. sqs.body .. '"}' end
  send = sqs.repeated("SendMessageBatch", ',"Entries":[' .. concat(entries, ",") .. "]")
  receive = sqs.repeated("ReceiveMessage", ',"MaxNumberOfMessages":10')
  delete = sqs.builder("DeleteMessageBatch")
end

function request()
  if first <= last then
    local entries = deletions[first]
    deletions[first] = nil
    first = first + 1
    deletes = deletes + 1
    return delete(',"Entries":[' .. entries .. "]")
  end
  if acknowledged >= 10 then
    acknowledged = acknowledged - 10
    receives = receives + 1
    return receive()
  end
  return send()
end

local function keep(handles)
  local entries = {}
  for i, handle in ipairs(handles) do entries[i] = '{"Id":"' .. i .. '","ReceiptHandle":"' .. handle .. '"}' end
  received = received + #handles
  if #handles < 10 then
    short = short + 1
    acknowledged = acknowledged + 10 - #handles
  end
  last = last + 1
  deletions[last] = concat(entries, ",")
end

local constant_handles = {}
for i = 1, 10 do constant_handles[i] = sqs.constant_handle end

local function pretend()
  turn = (turn + 1) % 3
  if turn == 1 then
    sent = sent + 10
    acknowledged = acknowledged + 10
  elseif turn == 2 then
    keep(constant_handles)
  else
    deleted = deleted + 10
  end
end

function response(status, headers, body)
  if status ~= 200 then return end
  if sqs.constant then return pretend() end
  local handle, at = sqs.handle(body, 1)
  if handle then
    local handles = {}
    while handle do
      handles[#handles + 1] = handle
      handle, at = sqs.handle(body, at)
    end
    return keep(handles)
  end
  refused = refused + sqs.count(body, '"Code"')
  if find(body, '"MD5OfMessageBody"', 1, true) then
    local n = sqs.count(body, '"MD5OfMessageBody"')
    sent = sent + n
    acknowledged = acknowledged + n
  else
    deleted = deleted + sqs.count(body, '"Id"') - sqs.count(body, '"Code"')
  end
end
