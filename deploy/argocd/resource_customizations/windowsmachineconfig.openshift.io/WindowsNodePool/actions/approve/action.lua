-- An annotation, so that the manifest in Git need not change. It names a version, and does not approve a later one.
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["windowsmachineconfig.openshift.io/approve"] = obj.status.desiredVersion
return obj
