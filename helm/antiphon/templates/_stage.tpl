{{/*
A stage's values as YAML: `stageDefaults` with the stage's own on top.
Arguments: root, role.
*/}}
{{- define "antiphon.stage" -}}
{{- $own := default dict (get .root.Values.stages .role) -}}
{{- mergeOverwrite (deepCopy .root.Values.stageDefaults) (deepCopy $own) | toYaml -}}
{{- end -}}

{{/* Directory of the checkpoint in the stages' containers. */}}
{{- define "antiphon.modelPath" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "embedded" -}}
/app/models/antiphon-demo
{{- else -}}
{{- printf "/models/%s" $model.directory | trimSuffix "/" -}}
{{- end -}}
{{- end -}}

{{/* What the volume "model" is, which an embedded model does not have. Arguments: root, stage. */}}
{{- define "antiphon.modelVolume" -}}
{{- $model := .root.Values.model -}}
{{- if eq $model.source "hostPath" -}}
hostPath:
  path: {{ $model.hostPath | quote }}
  type: Directory
{{- else -}}
persistentVolumeClaim:
  claimName: {{ default $model.existingClaim .stage.modelClaim | quote }}
{{- end }}
{{- end -}}

{{/* Requests and limits with the accelerators in both. Arguments: root, stage. */}}
{{- define "antiphon.resources" -}}
{{- $resources := deepCopy .stage.resources -}}
{{- if ne .stage.accelerator.type "cpu" -}}
{{- $name := get .root.Values.acceleratorResources .stage.accelerator.type -}}
{{- range $half := list "requests" "limits" -}}
{{- $amounts := default dict (get $resources $half) -}}
{{- $_ := set $amounts $name $.stage.accelerator.count -}}
{{- $_ := set $resources $half $amounts -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
