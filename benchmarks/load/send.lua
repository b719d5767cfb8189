-- SendMessage, unbatched, 256 bytes: one constant request if possible, so that wrk costs little. wrk itself counts
-- unsuccessful replies (errors_status).

local sqs = require("sqs")

function init(args)
  request = sqs.sender()
end

function request() end
