-- Precedes the scripts that look for jobs by id. Return the id of a job, the bytes that this cost, and whether the job can
-- be read here.
local DECODING = 4 -- times as slow as reading

local function jid_of(job)
  local at = string.find(job, '"jid"', 1, true) or #job
  local _, last, jid = string.find(job, '^"jid"%s*:%s*"([^"\\]*)"', at)
  -- It has no other member of this name, unless escaped.
  if jid and not string.find(job, '"jid"', last, true) and not string.find(job, '\\u00', 1, true) then
    return jid, #job, true
  end
  local is_json, read = pcall(cjson.decode, job)
  jid = is_json and type(read) == 'table' and read.jid
  return type(jid) == 'string' and jid or '', #job * (1 + DECODING), is_json
end

