-- Argo CD's health of a policy: is it in force as it stands in Git? What it decides is no matter of health: a policy that finds nothing to
-- do is as healthy as one that moves a worker. Argo CD's Lua is 5.1 without string and math libraries.
local health = {}

local function say(status, message)
  health.status = status
  health.message = message or ""
  return health
end

local status = obj.status
if status == nil or status.observedGeneration == nil or status.conditions == nil then
  return say("Progressing", "the engine hasn't looked at it yet")
end
local generation = tonumber(obj.metadata.generation)
if tonumber(status.observedGeneration) ~= generation then
  return say("Progressing", "the engine has looked at generation " .. tostring(status.observedGeneration) .. " only")
end

local found = {}
for _, condition in ipairs(status.conditions) do
  if condition.observedGeneration ~= nil and tonumber(condition.observedGeneration) ~= generation then
    return say("Progressing", "what is said of it is about an older generation")
  end
  found[condition.type] = condition
end
local accepted, active, degraded = found.Accepted, found.Active, found.Degraded
if accepted == nil or active == nil or degraded == nil then
  return say("Progressing", "not all is said of it yet")
end

if accepted.status == "False" then
  return say("Degraded", accepted.message .. " (" .. degraded.message .. ")")
end
if degraded.status == "True" then
  return say("Degraded", degraded.message)
end
if accepted.status ~= "True" then
  return say("Progressing", accepted.message)
end
if active.reason == "Off" then
  return say("Suspended", active.message)
end
return say("Healthy", active.message)
