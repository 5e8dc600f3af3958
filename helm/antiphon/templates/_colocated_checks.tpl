{{/* What can be said of a stage that shares a pod: where, and what is said of the pod alone. */}}
{{- define "antiphon.colocatedChecks" -}}
{{- $roles := include "antiphon.roles" . | fromJsonArray -}}
{{- $seen := dict -}}
{{- range $name, $pod := .Values.colocated -}}
{{- if $pod -}}
{{- if or (has $name $roles) (include "antiphon.isTaken" $name) -}}
{{- fail (printf "colocated.%s: is the name of a stage or of other objects of the release; choose another" $name) -}}
{{- end -}}
{{- range $role := $pod.stages -}}
{{- if not (has $role $roles) -}}
{{- fail (printf "colocated.%s.stages: no stage %s is installed; there are %s; leave it out, or set colocated.%s to null" $name $role (join ", " $roles) $name) -}}
{{- end -}}
{{- if hasKey $seen $role -}}
{{- fail (printf "colocated.%s.stages: %s is in colocated.%s already" $name $role (get $seen $role)) -}}
{{- end -}}
{{- $_ := set $seen $role $name -}}
{{- end -}}
{{- include "antiphon.ownerChecks" (dict "root" $ "name" $name "pod" $pod) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Every value has one place: the pod's, or that of each stage where it has a container of its own.
Arguments: root, name, pod (an entry of `colocated`).
*/}}
{{- define "antiphon.ownerChecks" -}}
{{- $accelerators := default "own" .pod.accelerators -}}
{{- $ofContainers := list "image" "resources" "probes" "env" "extraVolumeMounts" "accelerator" -}}
{{- $ofStages := list "config" -}}
{{- if eq $accelerators "own" -}}{{- $ofStages = concat $ofStages $ofContainers -}}{{- end -}}
{{- if eq $accelerators "claimed" -}}{{- $ofStages = concat $ofStages (without $ofContainers "accelerator") -}}{{- end -}}
{{- range $key := keys (omit .pod "stages" "accelerators") | sortAlpha -}}
{{- if has $key $ofStages -}}
{{- fail (printf "colocated.%s.%s: each of its stages has a container; set stages.%s.%s" $.name $key (first $.pod.stages) $key) -}}
{{- end -}}
{{- end -}}
{{- range $role := .pod.stages -}}
{{- range $key := keys (default dict (get $.root.Values.stages $role)) | sortAlpha -}}
{{- if not (has $key $ofStages) -}}
{{- fail (printf "stages.%s.%s: the stage shares a pod; set colocated.%s.%s" $role $key $.name $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $accelerators "shared") .root.Values.model.subPathPerStage -}}
{{- fail (printf "colocated.%s.accelerators: with model.subPathPerStage, shared is impossible: stages in one container read one directory" .name) -}}
{{- end -}}
{{- if eq $accelerators "claimed" -}}
{{- include "antiphon.claimChecks" . -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, name, pod. */}}
{{- define "antiphon.claimChecks" -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.stageDefaults) (deepCopy (omit .pod "stages" "accelerators")) -}}
{{- if eq $settings.accelerator.type "cpu" -}}
{{- fail (printf "colocated.%s.accelerator.type: is cpu, and nothing is left to be claimed; set it to nvidia or amd, or accelerators to own" .name) -}}
{{- end -}}
{{- $version := .root.Capabilities.KubeVersion.Version -}}
{{- if not (and (semverCompare ">=1.34-0" $version) (.root.Capabilities.APIVersions.Has "resource.k8s.io/v1")) -}}
{{- fail (printf "colocated.%s.accelerators: claimed needs resource.k8s.io/v1 (Kubernetes 1.34 or newer), which this cluster (%s) does not have; set it to shared" .name $version) -}}
{{- end -}}
{{- end -}}

{{/* Not empty for a name that other objects of the release have. */}}
{{- define "antiphon.isTaken" -}}
{{- if has . (list "gateway" "gateway_metrics" "gateway-metrics" "scaler" "config" "dashboard" "metrics" "model" "smoke") -}}yes{{- end -}}
{{- end -}}
