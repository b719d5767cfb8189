-- The cycle of SMQ by ten: BatchSendMessage → BatchReceiveMessage → BatchDeleteMessage. The order and the counters
-- are those of cycle_ten.lua.

local smq = require("smq")
local deletions, first, last = {}, 1, 0
local acknowledged = 0
local send, receive

function init(args)
  send = smq.request("POST", "Messages", smq.messages(10))
  receive = smq.bare("GET", "?numOfMessages=10")
end

function request()
  if first <= last then
    local deletion = deletions[first]
    deletions[first] = nil
    first = first + 1
    deletes = deletes + 1
    return deletion
  end
  if acknowledged >= 10 then
    acknowledged = acknowledged - 10
    receives = receives + 1
    return receive
  end
  return send
end

local function keep(body)
  local handles = {}
  local handle, at = smq.handle(body, 1)
  while handle do
    handles[#handles + 1] = "<ReceiptHandle>" .. handle .. "</ReceiptHandle>"
    handle, at = smq.handle(body, at)
  end
  received = received + #handles
  if #handles < 10 then
    short = short + 1
    acknowledged = acknowledged + 10 - #handles
  end
  last = last + 1
  deletions[last] = smq.request("DELETE", "ReceiptHandles", table.concat(handles))
end

function response(status, headers, body)
  if status == 200 then
    keep(body)
  elseif status == 201 then
    local n = smq.count(body, "<MessageBodyMD5>")
    sent = sent + n
    acknowledged = acknowledged + n
  elseif status == 204 then
    deleted = deleted + 10  -- of all that were received, which is ten but for the few of `short`
  else
    refused = refused + smq.count(body, "<ErrorCode>")
  end
end
