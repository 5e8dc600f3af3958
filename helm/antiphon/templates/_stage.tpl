{{/* The model family: unless one is named, that of the embedded model. Others name theirs, see antiphon.checks. */}}
{{- define "antiphon.pipeline" -}}
{{- default (.Files.Get "pipelines.yaml" | fromYaml).embedded .Values.model.pipeline -}}
{{- end -}}

{{/* The model families that this chart knows, in words. */}}
{{- define "antiphon.pipelineNames" -}}
{{- keys (.Files.Get "pipelines.yaml" | fromYaml).stages | sortAlpha | join ", " -}}
{{- end -}}

{{/* The roles of the pipeline's stages as a JSON list; empty if this chart does not know it. */}}
{{- define "antiphon.knownRoles" -}}
{{- $stages := (.Files.Get "pipelines.yaml" | fromYaml).stages -}}
{{- get $stages (include "antiphon.pipeline" .) | default list | toJson -}}
{{- end -}}

{{/*
The roles that are installed as a JSON list: those of the pipeline, and those that
`stages` lists for one from elsewhere, without those that it sets to null.
*/}}
{{- define "antiphon.roles" -}}
{{- $roles := list -}}
{{- range $role := concat (include "antiphon.knownRoles" . | fromJsonArray) (keys .Values.stages) | uniq | sortAlpha -}}
{{- if not (and (hasKey $.Values.stages $role) (kindIs "invalid" (get $.Values.stages $role))) -}}
{{- $roles = append $roles $role -}}
{{- end -}}
{{- end -}}
{{- toJson $roles -}}
{{- end -}}

{{/* A stage's dtype on an accelerator: the only one that it computes in, or bfloat16. Arguments: root, role. */}}
{{- define "antiphon.acceleratedDtype" -}}
{{- $dtypes := (.root.Files.Get "pipelines.yaml" | fromYaml).dtypes -}}
{{- dig (include "antiphon.pipeline" .root) .role "bfloat16" $dtypes -}}
{{- end -}}

{{/*
A stage's values as YAML: `stageDefaults` with those of its pod, if it shares one, and the stage's own
on top. Arguments: root, role.
*/}}
{{- define "antiphon.stage" -}}
{{- $stage := deepCopy .root.Values.stageDefaults -}}
{{- $pod := default dict (get .root.Values.colocated (include "antiphon.podOf" .)) -}}
{{- range $own := list (omit $pod "stages" "accelerators") (default dict (get .root.Values.stages .role)) -}}
{{- $stage = mergeOverwrite $stage (deepCopy $own) -}}
{{- /* A merge takes no null: here it says that somebody else sets the number. */ -}}
{{- if and (hasKey $own "replicas") (kindIs "invalid" $own.replicas) -}}
{{- $stage = unset $stage "replicas" -}}
{{- end -}}
{{- end -}}
{{- toYaml $stage -}}
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
{{- else if eq $model.source "emptyDir" -}}
emptyDir:
  sizeLimit: {{ $model.volume.size }}
{{- else -}}
{{- $claim := eq $model.source "claim" | ternary (include "antiphon.modelClaim" .root) $model.existingClaim -}}
persistentVolumeClaim:
  claimName: {{ default $claim .stage.modelClaim | quote }}
{{- end }}
{{- end -}}

{{/* Name of the claim that the chart makes. Arguments: the root. */}}
{{- define "antiphon.modelClaim" -}}
{{- include "antiphon.componentName" (dict "root" . "component" "model") -}}
{{- end -}}

{{/* Where the volume "model" is mounted. Arguments: root, component, readOnly. */}}
{{- define "antiphon.modelMount" -}}
- name: model
  mountPath: /models
  {{- if .root.Values.model.subPathPerStage }}
  subPath: {{ .component }}
  {{- end }}
  {{- if .readOnly }}
  readOnly: true
  {{- end }}
{{- end -}}

{{/* The containers of a workload whose checkpoints are downloaded: one for all where they share it. */}}
{{- define "antiphon.downloads" -}}
{{- .root.Values.model.subPathPerStage | ternary .containers (list (first .containers)) | toYaml -}}
{{- end -}}

{{/*
The container that puts the checkpoint into the volume. It has the resources of the stage, which runs
after it. Arguments: root, container (of the stage).
*/}}
{{- define "antiphon.download" -}}
{{- $download := .root.Values.model.download -}}
{{- $settings := .container.settings -}}
{{- $variant := include "antiphon.variant" (dict "root" .root "stages" .container.stages "settings" $settings) -}}
{{- $image := include "antiphon.image" (dict "root" .root "image" $settings.image "variant" $variant) -}}
{{- $role := first .container.stages -}}
- name: {{ has .container.name (list "stage" "stages") | ternary "download" (printf "download-%s" .container.name) }}
  image: {{ default $image $download.image }}
  imagePullPolicy: {{ include "antiphon.pullPolicy" (dict "root" .root "image" $settings.image) }}
  command:
    {{- toYaml $download.command | nindent 4 }}
  env:
    - name: HOME
      value: /tmp
    - name: MODEL_DIRECTORY
      value: {{ include "antiphon.modelPath" .root }}
    {{- with $download.existingSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ . }}
          key: {{ $download.secretKey }}
    {{- end }}
    {{- with $download.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  resources:
    {{- toYaml $settings.resources | nindent 4 }}
  volumeMounts:
    {{- include "antiphon.modelMount" (dict "root" .root "component" $role) | nindent 4 }}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{/*
Requests and limits with the accelerators in both, or with the claim that several containers share.
Arguments: root, stage, accelerators.
*/}}
{{- define "antiphon.resources" -}}
{{- $resources := deepCopy .stage.resources -}}
{{- if eq .accelerators "claimed" -}}
{{- $_ := set $resources "claims" (list (dict "name" "accelerators")) -}}
{{- else if ne .stage.accelerator.type "cpu" -}}
{{- $name := get .root.Values.acceleratorResources .stage.accelerator.type -}}
{{- range $half := list "requests" "limits" -}}
{{- $amounts := default dict (get $resources $half) -}}
{{- $_ := set $amounts $name $.stage.accelerator.count -}}
{{- $_ := set $resources $half $amounts -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
