-- What the load scripts of SMQ share: requests as finished strings, and the recognition of replies. Counters and report
-- are those of sqs.lua.

local sqs = require("sqs")
local smq = { body = sqs.body, count = sqs.count }

local path = "/queues/" .. sqs.queue_url:match("[^/]+$") .. "/messages"
local namespace = ' xmlns="http://mns.aliyuncs.com/doc/v1/"'
local prolog = '<?xml version="1.0" encoding="utf-8"?>\n'
local known

-- The part between the target and the headers of a body; wrk sets its host before it calls `init`.
local function headers()
  known = known or " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\nx-mns-version: 2015-06-06\r\n"
  return known
end

-- A request without a body; `query` follows the path.
function smq.bare(method, query)
  return method .. " " .. path .. query .. headers() .. "\r\n"
end

-- A request whose body is `root` with `inner`.
function smq.request(method, root, inner)
  local body = prolog .. "<" .. root .. namespace .. ">" .. inner .. "</" .. root .. ">"
  return method .. " " .. path .. headers() .. "Content-Type: text/xml;charset=UTF-8\r\nContent-Length: " .. #body
    .. "\r\n\r\n" .. body
end

smq.message = "<MessageBody>" .. sqs.body .. "</MessageBody>"

function smq.messages(n)
  return string.rep("<Message>" .. smq.message .. "</Message>", n)
end

local find, sub = string.find, string.sub

-- The next receipt handle in `body` at or after `from`, and where it ends.
function smq.handle(body, from)
  local _, opening = find(body, "<ReceiptHandle>", from, true)
  if not opening then return nil end
  local closing = find(body, "<", opening, true)
  return sub(body, opening + 1, closing - 1), closing
end

return smq
