-- SendMessage of SMQ, unbatched, 256 bytes: one constant request.

local smq = require("smq")

function init(args)
  local send = smq.request("POST", "Message", smq.message)
  request = function() return send end
end

function request() end
