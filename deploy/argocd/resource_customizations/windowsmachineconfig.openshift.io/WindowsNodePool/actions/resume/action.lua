if obj.spec.rollout == nil then
  obj.spec.rollout = {}
end
-- False, not nil: Argo CD treats a table that becomes empty as unchanged.
obj.spec.rollout.paused = false
obj.spec.rollout.pausedUntil = nil
return obj
