-- DeleteMessage, each with the next handle of the file that receive.lua wrote. At the end of the file the last one is
-- deleted again and again, which `spent` counts: a run with `spent` above zero is rejected.

local sqs = require("sqs")

function init(args)
  local requests, delete = {}, sqs.builder("DeleteMessage")
  if sqs.constant then
    requests[1] = delete(',"ReceiptHandle":"' .. sqs.constant_handle .. '"')
  else
    for handle in io.lines(sqs.handles_file) do
      requests[#requests + 1] = delete(',"ReceiptHandle":"' .. handle .. '"')
    end
  end
  local next, last = 0, #requests
  request = function()
    if next < last then
      next = next + 1
      deletes = deletes + 1
    elseif not sqs.constant then
      spent = spent + 1
    end
    return requests[next]
  end
end

function request() end
