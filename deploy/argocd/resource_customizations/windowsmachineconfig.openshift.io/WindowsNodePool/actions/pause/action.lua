-- Self-heal keeps the field as long as the manifest in Git does not set it.
if obj.spec.rollout == nil then
  obj.spec.rollout = {}
end
obj.spec.rollout.paused = true
return obj
