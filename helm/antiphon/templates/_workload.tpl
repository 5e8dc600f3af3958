{{/*
A workload is a Deployment of stages: of one stage, or of those of an entry of `colocated`, which share
a pod. Its name is that of the stage or of the entry.
*/}}

{{/* The name of the workload that has a stage. Arguments: root, role. */}}
{{- define "antiphon.podOf" -}}
{{- $name := .role -}}
{{- range $pod, $settings := .root.Values.colocated -}}
{{- if has $.role (default list (default dict $settings).stages) -}}{{- $name = $pod -}}{{- end -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The names of all workloads of stages as a JSON list. */}}
{{- define "antiphon.workloads" -}}
{{- $names := list -}}
{{- range $role := include "antiphon.roles" . | fromJsonArray -}}
{{- $names = append $names (include "antiphon.podOf" (dict "root" $ "role" $role)) -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end -}}

{{/*
What the templates of a workload's pod take, as YAML: component (its name), stages (their roles in the
order of their ports), accelerators (own, shared or claimed), settings (the values of the pod), and
containers: each has a name, stages, and the settings of its values. Arguments: root, component.
*/}}
{{- define "antiphon.workload" -}}
{{- $pod := default dict (get .root.Values.colocated .component) -}}
{{- $stages := default (list .component) $pod.stages -}}
{{- $accelerators := default "own" $pod.accelerators -}}
{{- $settings := include "antiphon.stage" (dict "root" .root "role" (first $stages)) | fromYaml -}}
{{- $containers := list -}}
{{- if or (not $pod) (eq $accelerators "shared") -}}
{{- $containers = list (dict "name" (ternary "stages" "stage" (not (empty $pod))) "stages" $stages "settings" $settings) -}}
{{- else -}}
{{- range $role := $stages -}}
{{- $own := include "antiphon.stage" (dict "root" $.root "role" $role) | fromYaml -}}
{{- $containers = append $containers (dict "name" ($role | replace "_" "-") "stages" (list $role) "settings" $own) -}}
{{- end -}}
{{- end -}}
{{- dict "component" .component "stages" $stages "accelerators" $accelerators "settings" $settings "containers" $containers | toYaml -}}
{{- end -}}

{{/*
Where a stage listens: the numbers of its ports by their names, as YAML. Stages that share a pod have ten
between them. Arguments: root, role.
*/}}
{{- define "antiphon.stagePorts" -}}
{{- $at := 0 -}}
{{- range $settings := .root.Values.colocated -}}
{{- range $index, $role := default list (default dict $settings).stages -}}
{{- if eq $role $.role -}}{{- $at = $index -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name := list "stage" "metrics" "health" }}
{{ $name }}: {{ add (include (printf "antiphon.%sPort" $name) $.root | int) (mul 10 $at) }}
{{- end }}
suffix: {{ gt $at 0 | ternary (printf "-%d" $at) "" | quote }}
{{- end -}}

{{/*
The variant of the stages' image that a container needs: `vllm` where one of its stages is told to run on
it, else that of its accelerator. Arguments: root, stages, settings.
*/}}
{{- define "antiphon.variant" -}}
{{- $type := .settings.accelerator.type -}}
{{- $variant := eq $type "nvidia" | ternary "cuda" $type -}}
{{- if ne $type "cpu" -}}
{{- range $role := .stages -}}
{{- $stage := include "antiphon.stage" (dict "root" $.root "role" $role) | fromYaml -}}
{{- if eq (default "" $stage.config.engine) "vllm" -}}{{- $variant = "vllm" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $variant -}}
{{- end -}}

{{/* One container of a pod of stages. Arguments: root, workload, container. */}}
{{- define "antiphon.stageContainer" -}}
{{- $settings := .container.settings -}}
{{- $role := first .container.stages -}}
{{- $together := eq .workload.accelerators "shared" -}}
{{- $ports := include "antiphon.stagePorts" (dict "root" .root "role" $role) | fromYaml -}}
{{- $health := $together | ternary (include "antiphon.stagesHealthPort" .root) $ports.health -}}
{{- $variant := include "antiphon.variant" (dict "root" .root "stages" .container.stages "settings" $settings) -}}
- name: {{ .container.name }}
  image: {{ include "antiphon.image" (dict "root" .root "image" $settings.image "variant" $variant) }}
  imagePullPolicy: {{ include "antiphon.pullPolicy" (dict "root" .root "image" $settings.image) }}
  {{- if $together }}
  # Processes that share the accelerators, each started again when it ends.
  command: [python, -m, antiphon_tools.launcher, stages, {{ join ", " .container.stages }}, --config, /etc/antiphon/deployment.yaml, --health-listen, "[::]:{{ $health }}"]
  {{- else }}
  command: [python, -m, antiphon_services, {{ $role }}, --config, /etc/antiphon/deployment.yaml]
  {{- end }}
  env:
    {{- include "antiphon.env" $settings | nindent 4 }}
  {{- with $settings.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- range $each := .container.stages }}
    {{- $own := include "antiphon.stagePorts" (dict "root" $.root "role" $each) | fromYaml }}
    - {name: grpc{{ $own.suffix }}, containerPort: {{ $own.stage }}}
    - {name: metrics{{ $own.suffix }}, containerPort: {{ $own.metrics }}}
    - {name: health{{ $own.suffix }}, containerPort: {{ $own.health }}}
    {{- end }}
    {{- if $together }}
    - {name: health-of-all, containerPort: {{ $health }}}
    {{- end }}
  # Two answers: a stage whose vLLM starts again is not ready, and alive.
  {{- range $probe := list "startup" "readiness" "liveness" }}
  {{ $probe }}Probe:
    grpc: {port: {{ $health }}, service: {{ eq $probe "liveness" | ternary "alive" "ready" }}}
    {{- toYaml (get $settings.probes $probe) | nindent 4 }}
  {{- end }}
  # Gateways stop choosing a pod that is leaving before it is told to.
  lifecycle:
    preStop:
      sleep: {seconds: {{ $settings.preStopSeconds }}}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  resources:
    {{- include "antiphon.resources" (dict "root" .root "stage" $settings "accelerators" .workload.accelerators) | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/antiphon, readOnly: true}
    {{- if ne .root.Values.model.source "embedded" }}
    {{- include "antiphon.modelMount" (dict "root" .root "component" $role "readOnly" true) | nindent 4 }}
    {{- end }}
    - {name: shared-memory, mountPath: /dev/shm}
    - {name: tmp, mountPath: /tmp}
    {{- include "antiphon.mutualTlsMounts" (dict "root" .root "roles" .container.stages) | nindent 4 }}
    {{- with $settings.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
