-- ReceiveMessage of one message from a filled queue: one constant request if possible. The handles go to the
-- file BENCH_HANDLES, which delete.lua reads; a reply without a message counts as `short`.

local sqs = require("sqs")
local file

function init(args)
  request = sqs.repeated("ReceiveMessage", ',"MaxNumberOfMessages":1')
  if sqs.handles_file then file = assert(io.open(sqs.handles_file, "w")) end
end

function request() end

function response(status, headers, body)
  local handle = sqs.handle(body, 1)
  if sqs.constant then handle = sqs.constant_handle end
  if status == 200 and handle then
    received = received + 1
    if file then file:write(handle, "\n") end
  else
    short = short + 1
  end
end
