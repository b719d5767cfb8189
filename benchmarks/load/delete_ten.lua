-- DeleteMessageBatch of ten, each with the next handles of the file that receive_ten.lua wrote. At the end of the file
-- the last batch is deleted again and again, which `spent` counts: a run with `spent` above zero is rejected.

local sqs = require("sqs")

function init(args)
  local batches, entries, delete = {}, {}, sqs.builder("DeleteMessageBatch")
  for handle in io.lines(sqs.handles_file) do
    entries[#entries + 1] = '{"Id":"' .. #entries .. '","ReceiptHandle":"' .. handle .. '"}'
    if #entries == 10 then
      batches[#batches + 1] = ',"Entries":[' .. table.concat(entries, ",") .. "]"
      entries = {}
    end
  end
  local next, last = 0, #batches
  request = function()
    if next < last then
      next = next + 1
      deletes = deletes + 1
    else
      spent = spent + 1
    end
    return delete(batches[next])
  end
end

function request() end

function response(status, headers, body)
  deleted = deleted + sqs.count(body, '"Id"')
  refused = refused + sqs.count(body, '"Code"')
end
