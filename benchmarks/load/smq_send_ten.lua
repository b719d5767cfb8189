-- BatchSendMessage of SMQ, ten messages of 256 bytes: one constant request.

local smq = require("smq")

function init(args)
  local batch = smq.request("POST", "Messages", smq.messages(10))
  request = function() return batch end
end

function request() end

function response(status, headers, body)
  sent = sent + smq.count(body, "<MessageBodyMD5>")
end
