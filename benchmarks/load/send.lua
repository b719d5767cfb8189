-- SendMessage, unbatched, 256 bytes: one constant request where it can be, so that wrk costs as little as it can. wrk
-- itself counts the answers that are not a success (errors_status).

local sqs = require("sqs")

function init(args)
  request = sqs.sender()
end

function request() end
