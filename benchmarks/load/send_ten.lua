-- SendMessageBatch of ten messages of 256 bytes: one constant request if possible. `refused` counts the failed
-- entries of successful replies.

local sqs = require("sqs")

function init(args)
  local entries = {}
  for i = 0, 9 do entries[i + 1] = '{"Id":"' .. i .. '","MessageBody":"' .. sqs.body .. '"}' end
  request = sqs.repeated("SendMessageBatch", ',"Entries":[' .. table.concat(entries, ",") .. "]")
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
