local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local paused = (conditions["Paused"] or {}).status == "True"
local waits = (conditions["Updated"] or {}).reason == "WaitingForApproval"
local seen = status.observedGeneration == obj.metadata.generation
local inventory = obj.spec.inventory

return {
  ["pause"] = { disabled = paused, iconClass = "fa fa-fw fa-pause-circle", displayName = "Pause" },
  ["resume"] = { disabled = not paused, iconClass = "fa fa-fw fa-play-circle", displayName = "Resume" },
  ["approve"] = {
    disabled = not (seen and waits),
    iconClass = "fa fa-fw fa-check-circle",
    displayName = "Approve the version",
  },
  ["confirm-removal"] = {
    disabled = not (seen and (status.removalsToConfirm or 0) > 0),
    iconClass = "fa fa-fw fa-trash",
    displayName = "Confirm the removal of hosts",
  },
  ["fetch"] = {
    disabled = inventory.git == nil and inventory.sourceRef == nil,
    iconClass = "fa fa-fw fa-sync",
    displayName = "Fetch the host list",
  },
}
