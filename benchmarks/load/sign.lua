-- Signature version 4 for the load scripts, with the crypto library that wrk is linked with.
--
-- BENCH_KEY is `<access key id>:<secret>`, BENCH_SIGNED_AT the time (ISO 8601, basic) of all requests of a run.

local ffi = require("ffi")

ffi.cdef([[
  unsigned char *SHA256(const char *data, size_t length, unsigned char *digest);
  const void *EVP_sha256(void);
  unsigned char *HMAC(const void *kind, const char *key, int key_length, const char *data, size_t length,
                      unsigned char *digest, unsigned int *digest_length);
]])

local sign = {}

local HEADERS = "content-type;host;x-amz-date;x-amz-target"
local digest = ffi.new("unsigned char[32]")
local kind
local hex = {}
for byte = 0, 255 do hex[byte] = string.format("%02x", byte) end

local function read_hex()
  local parts = {}
  for i = 0, 31 do parts[i + 1] = hex[digest[i]] end
  return table.concat(parts)
end

local function hash(data)
  ffi.C.SHA256(data, #data, digest)
  return read_hex()
end

local function mac(key, data)
  ffi.C.HMAC(kind, key, #key, data, #data, digest, nil)
end

local function derived(key, data)
  mac(key, data)
  return ffi.string(digest, 32)
end

-- A function that returns the two header lines for a body of `action`, or nil without a key.
function sign.signer(action)
  local pair = os.getenv("BENCH_KEY")
  if not pair then return nil end
  kind = kind or ffi.C.EVP_sha256()
  local id, secret = pair:match("^([^:]+):(.+)$")
  local at = os.getenv("BENCH_SIGNED_AT")
  local day = at:sub(1, 8)
  local scope = day .. "/us-east-1/sqs/aws4_request"
  local key = "AWS4" .. secret
  for _, part in ipairs({ day, "us-east-1", "sqs", "aws4_request" }) do key = derived(key, part) end
  local canonical = "POST\n/\n\ncontent-type:application/x-amz-json-1.0\nhost:" .. wrk.headers["Host"]
    .. "\nx-amz-date:" .. at .. "\nx-amz-target:AmazonSQS." .. action .. "\n\n" .. HEADERS .. "\n"
  local prefix = "AWS4-HMAC-SHA256\n" .. at .. "\n" .. scope .. "\n"
  local opening = "\r\nX-Amz-Date: " .. at .. "\r\nAuthorization: AWS4-HMAC-SHA256 Credential=" .. id .. "/" .. scope
    .. ", SignedHeaders=" .. HEADERS .. ", Signature="
  return function(body)
    mac(key, prefix .. hash(canonical .. hash(body)))
    return opening .. read_hex()
  end
end

return sign
