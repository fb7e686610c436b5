local failed = obj.status ~= nil and obj.status.failures ~= nil
return {
  ["retry"] = { disabled = not failed, iconClass = "fa fa-fw fa-redo", displayName = "Retry" },
}
