-- Any new value counts, and the resource version changes with each.
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["windowsmachineconfig.openshift.io/retry"] = obj.metadata.resourceVersion
return obj
