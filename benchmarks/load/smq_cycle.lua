-- The cycle of SMQ, unbatched: send → receive → delete. The order is that of cycle.lua.

local smq = require("smq")
local handles, first, last = {}, 1, 0
local acknowledged = 0
local send, receive

function init(args)
  send = smq.request("POST", "Message", smq.message)
  receive = smq.bare("GET", "")
end

function request()
  if first <= last then
    local handle = handles[first]
    handles[first] = nil
    first = first + 1
    deletes = deletes + 1
    return smq.bare("DELETE", "?ReceiptHandle=" .. handle)
  end
  if acknowledged > 0 then
    acknowledged = acknowledged - 1
    receives = receives + 1
    return receive
  end
  return send
end

function response(status, headers, body)
  if status == 200 then
    received = received + 1
    last = last + 1
    handles[last] = smq.handle(body, 1)
  elseif status == 201 then
    sent = sent + 1
    acknowledged = acknowledged + 1
  elseif status == 204 then
    deleted = deleted + 1
  end
end
