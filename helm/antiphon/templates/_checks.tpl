{{/* A memory quantity in bytes. */}}
{{- define "antiphon.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $number := regexFind "^[0-9.]+" (toString .) -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number (toString .))) -}}
{{- end -}}

{{/* Refuses what the schema cannot see. Rendered first by the ConfigMap. */}}
{{- define "antiphon.checks" -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" (include "antiphon.fullname" .)) -}}
{{- fail (printf "%q cannot begin the name of a Service: set fullnameOverride to one that starts with a letter" (include "antiphon.fullname" .)) -}}
{{- end -}}
{{- if eq .Values.model.source "hostPath" -}}
{{- if not .Values.model.hostPath -}}
{{- fail "model.source is hostPath: set model.hostPath" -}}
{{- end -}}
{{- else if .Values.model.hostPath -}}
{{- fail "model.hostPath is set: set model.source to hostPath as well, or remove it" -}}
{{- end -}}
{{- if and .Values.model.existingClaim (ne .Values.model.source "existingClaim") -}}
{{- fail "model.existingClaim is set: set model.source to existingClaim as well, or remove it" -}}
{{- end -}}
{{- if and (ne .Values.model.source "embedded") (not .Values.model.pipeline) -}}
{{- fail (printf "model.pipeline: is empty; name the model family of the checkpoint (this chart knows %s)" (include "antiphon.pipelineNames" .)) -}}
{{- end -}}
{{- include "antiphon.roleChecks" . -}}
{{- range $role := include "antiphon.roles" . | fromJsonArray -}}
{{- $stage := include "antiphon.stage" (dict "root" $ "role" $role) | fromYaml -}}
{{- include "antiphon.stageChecks" (dict "root" $ "role" $role "stage" $stage) -}}
{{- end -}}
{{- end -}}

{{- define "antiphon.roleChecks" -}}
{{- $pipeline := include "antiphon.pipeline" . -}}
{{- $known := include "antiphon.knownRoles" . | fromJsonArray -}}
{{- range $role := keys .Values.stages | sortAlpha -}}
{{- if eq $role "gateway" -}}
{{- fail "stages.gateway: no stage can be called gateway" -}}
{{- end -}}
{{- if and $known (not (has $role $known)) -}}
{{- fail (printf "stages.%s: the pipeline %s has no such stage; it has %s" $role $pipeline (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- if not (include "antiphon.roles" . | fromJsonArray) -}}
{{- if $known -}}
{{- fail (printf "stages: at least one of %s must not be null" (join ", " $known)) -}}
{{- end -}}
{{- fail (printf "model.pipeline: this chart does not know %s, only %s; list the roles of its stages in stages, as in {role: {}}" $pipeline (include "antiphon.pipelineNames" .)) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, role, stage. */}}
{{- define "antiphon.stageChecks" -}}
{{- if and (eq .root.Values.model.source "existingClaim") (not (or .stage.modelClaim .root.Values.model.existingClaim)) -}}
{{- fail (printf "model.source is existingClaim: set model.existingClaim, or stages.%s.modelClaim" .role) -}}
{{- end -}}
{{- $limit := dig "limits" "memory" "" .stage.resources -}}
{{- if not $limit -}}
{{- fail (printf "stages.%s.resources.limits.memory: must be set, /dev/shm counts against it" .role) -}}
{{- end -}}
{{- if ge (include "antiphon.bytes" .stage.sharedMemory.size | float64) (include "antiphon.bytes" $limit | float64) -}}
{{- fail (printf "stages.%s.sharedMemory.size: %v must be less than resources.limits.memory, %v" .role .stage.sharedMemory.size $limit) -}}
{{- end -}}
{{- if and (eq .stage.accelerator.type "cpu") (hasPrefix "cuda" (default "" .stage.config.device)) -}}
{{- fail (printf "stages.%s.config.device: %s needs accelerator.type nvidia or amd" .role .stage.config.device) -}}
{{- end -}}
{{- end -}}
