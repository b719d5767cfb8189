-- ReceiveMessage of ten messages from a filled queue. Handles go to the file BENCH_HANDLES, one per line, which
-- delete_ten.lua reads; a reply without a message counts as `short`.

local sqs = require("sqs")
local file

function init(args)
  request = sqs.repeated("ReceiveMessage", ',"MaxNumberOfMessages":10')
  if sqs.handles_file then file = assert(io.open(sqs.handles_file, "w")) end
end

function request() end

function response(status, headers, body)
  local handle, at = sqs.handle(body, 1)
  if not handle then short = short + 1 end
  while handle do
    received = received + 1
    if file then file:write(handle, "\n") end
    handle, at = sqs.handle(body, at)
  end
end
