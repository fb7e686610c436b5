-- Any new value counts, and the resource version changes with each.
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["reconcile.fluxcd.io/requestedAt"] = obj.metadata.resourceVersion
return obj
