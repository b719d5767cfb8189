-- SendMessageBatch of ten messages of 256 bytes: one constant request. `refused` counts the entries that failed
-- inside an answer that succeeded.

local sqs = require("sqs")

function init(args)
  local entries = {}
  for i = 0, 9 do entries[i + 1] = '{"Id":"' .. i .. '","MessageBody":"' .. sqs.body .. '"}' end
  local batch = sqs.request("SendMessageBatch", ',"Entries":[' .. table.concat(entries, ",") .. "]")
  request = function() return batch end
end

function request() end

function response(status, headers, body)
  if sqs.constant then
    sent = sent + 10
  else
    sent = sent + sqs.count(body, '"MD5OfMessageBody"')
    refused = refused + sqs.count(body, '"Code"')
  end
end
