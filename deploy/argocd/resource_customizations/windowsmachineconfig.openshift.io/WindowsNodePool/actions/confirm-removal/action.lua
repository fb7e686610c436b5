-- The number confirms the removal that waits now. If it is another one by then, nothing leaves.
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["windowsmachineconfig.openshift.io/approve-removal"] = "" .. obj.status.removalsToConfirm
return obj
