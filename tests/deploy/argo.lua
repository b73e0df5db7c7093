-- Runs a health check as Argo CD does (gopher-lua without its open libraries): Lua 5.1 with base, package and table, and `os` by require with
-- time and date alone. Arguments: the check, a file that returns the resource. Prints status and message.
local check, resource = arg[1], arg[2]
local time, date = os.time, os.date
local out, load, open = io.write, loadfile, dofile
obj = open(resource)
package.loaded.os = nil
package.preload.os = function() return {time = time, date = date} end
getmetatable("").__index = nil
for _, name in ipairs({"string", "math", "io", "debug", "coroutine", "os", "arg"}) do
  _G[name] = nil
  if name ~= "os" then package.loaded[name] = nil end
end
local health = assert(load(check))()
out(tostring(health.status), "\n", tostring(health.message), "\n")
