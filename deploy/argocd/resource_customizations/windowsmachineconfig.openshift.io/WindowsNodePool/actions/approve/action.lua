-- An annotation, so that a manifest in Git stays as it is. It names the version: a later one is not approved by it.
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["windowsmachineconfig.openshift.io/approve"] = obj.status.desiredVersion
return obj
