-- The number confirms the removal that waits now. If another number of hosts waits by then, none is removed.
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["windowsmachineconfig.openshift.io/approve-removal"] = "" .. obj.status.removalsToConfirm
return obj
