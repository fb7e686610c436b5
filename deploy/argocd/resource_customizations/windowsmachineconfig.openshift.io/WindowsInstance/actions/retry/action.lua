-- Any new value is a request. The resource version is new after each change.
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["windowsmachineconfig.openshift.io/retry"] = obj.metadata.resourceVersion
return obj
