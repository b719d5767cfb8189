-- Long polls of 20 s and deletes of the received messages, while send.lua wakes the polls.

local sqs = require("sqs")
local receive, delete
local handles, first, last = {}, 1, 0

function init(args)
  receive = sqs.repeated("ReceiveMessage", ',"MaxNumberOfMessages":1,"WaitTimeSeconds":20')
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
  receives = receives + 1
  return receive()
end

function response(status, headers, body)
  local handle = sqs.handle(body, 1)
  if status == 200 and handle then
    received = received + 1
    last = last + 1
    handles[last] = handle
  end
end
