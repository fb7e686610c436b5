-- Health of a WindowsNodePool or a WindowsInstance. The status has the format of kstatus: Reconciling and Stalled are present only while
-- they are true. Argo CD runs this without Lua's standard libraries.
local status = obj.status or {}
if status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen this generation yet" }
end
local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
local ready = conditions["Ready"] or {}

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

-- Reasons of a wait that ends by a user's decision or when a maintenance window opens. Nothing is wrong.
local waits = {
  Paused = true,
  Planned = true,
  WaitingForApproval = true,
  WaitingForWindow = true,
  SettingsWouldBeLost = true,
  BlockedByCordon = true,
}

local health
if is("Stalled", "True") then
  health = "Degraded"
elseif waits[ready.reason] or status.phase == "Maintenance" then
  health = "Suspended"
elseif is("Reconciling", "True") then
  health = "Progressing"
elseif is("Ready", "True") then
  health = "Healthy"
elseif is("Ready", "False") then
  health = "Degraded"
else
  health = "Progressing"
end
return { status = health, message = ready.message or "" }
