-- SendMessage, unbatched, 256 bytes: one constant request, so that wrk costs as little as it can. wrk itself counts
-- the answers that are not a success (errors_status).

local sqs = require("sqs")

function init(args)
  local message = sqs.request("SendMessage", ',"MessageBody":"' .. sqs.body .. '"')
  request = function() return message end
end

function request() end
