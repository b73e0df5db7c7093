-- Argo CD's health of an operation, for where it is looked at: operations are the engine's own, come from no repository, and count in no
-- application's health. Argo CD's Lua is 5.1 without string and math libraries.
local health = {}

local function say(status, message)
  health.status = status
  health.message = message or ""
  return health
end

local status = obj.status
if status == nil or status.conditions == nil then
  return say("Progressing", "it is decided, and not begun")
end
local ended = nil
for _, condition in ipairs(status.conditions) do
  if condition.type == "Ended" then ended = condition end
end
if ended == nil then
  return say("Progressing", "not all is said of it yet")
end
if ended.status ~= "True" then
  return say("Progressing", ended.message)
end
if ended.reason == "Succeeded" or ended.reason == "Superseded" then
  return say("Healthy", ended.message)
end
return say("Degraded", ended.reason .. ": " .. ended.message)
