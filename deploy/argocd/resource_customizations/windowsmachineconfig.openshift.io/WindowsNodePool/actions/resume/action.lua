if obj.spec.rollout == nil then
  obj.spec.rollout = {}
end
-- False, not nil: Argo CD takes a table that becomes empty for one that has not changed.
obj.spec.rollout.paused = false
obj.spec.rollout.pausedUntil = nil
return obj
