{{/*
What the pods of stages and gateway share. Arguments: root, component, settings (the
stage's or the gateway's values), stages (the roles in it; of the gateway none).
*/}}
{{- define "antiphon.podSettings" -}}
{{- $reads := and (eq .component "gateway") (eq .root.Values.discovery "kubernetes") }}
{{- $account := include "antiphon.serviceAccountName" . }}
{{- if and $account (ne .component "smoke") }}
serviceAccountName: {{ $account }}
{{- end }}
automountServiceAccountToken: {{ $reads }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "antiphon.grace" . }}
{{- $security := deepCopy .root.Values.podSecurityContext }}
{{- if .root.Values.randomUser }}
{{- $security = omit $security "runAsUser" "runAsGroup" "fsGroup" }}
{{- else if and .stages .root.Values.model.download.enabled $security.runAsGroup }}
{{- /* What is downloaded is written as this user, and a new volume is root's. */}}
{{- $security = merge $security (dict "fsGroup" $security.runAsGroup "fsGroupChangePolicy" "OnRootMismatch") }}
{{- end }}
securityContext:
  {{- toYaml $security | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .settings.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where a Deployment's pods go beside each other. Arguments: root, component, settings. */}}
{{- define "antiphon.spread" -}}
{{- with .settings.topologySpread -}}
topologySpreadConstraints:
  {{- range . }}
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ .maxSkew | default 1 }}
    whenUnsatisfiable: {{ .whenUnsatisfiable | default "ScheduleAnyway" }}
    labelSelector:
      matchLabels:
        {{- include "antiphon.selectorLabels" $ | nindent 8 }}
    # Of one version at a time: an upgrade's pods are spread by themselves.
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end -}}
{{- end -}}

{{/*
Longest time that a rollout may stand still until it counts as failed: a pod that makes room, an image
that is pulled, a download, a start. Arguments: root, settings, stages.
*/}}
{{- define "antiphon.progressDeadline" -}}
{{- $starts := list .settings.probes.startup -}}
{{- range $role := .stages -}}
{{- $stage := include "antiphon.stage" (dict "root" $.root "role" $role) | fromYaml -}}
{{- $starts = append $starts $stage.probes.startup -}}
{{- end -}}
{{- $start_s := 0 -}}
{{- range $starts -}}
{{- $start_s = max $start_s (add (mul (int .periodSeconds) (int .failureThreshold)) (int (default 0 .initialDelaySeconds))) -}}
{{- end -}}
{{- if and .stages .root.Values.model.download.enabled -}}
{{- $start_s = add $start_s (int .root.Values.model.download.timeoutSeconds) -}}
{{- end -}}
{{- add $start_s (include "antiphon.grace" . | int) 600 -}}
{{- end -}}

{{/*
A new configuration replaces the pods that it concerns: a stage's do not load their
weights again because another stage or the gateway has changed. One port can be named to Prometheus,
so pods of several stages name none.
Arguments: root, component, settings, stages.
*/}}
{{- define "antiphon.podAnnotations" -}}
{{- $read := include "antiphon.deployment" .root | fromYaml -}}
{{- with .stages -}}
{{- $own := dict -}}
{{- range $role := . -}}{{- $_ := set $own $role (get $read.stages $role) -}}{{- end -}}
{{- $read = merge (dict "stages" $own) (omit $read "stages" "gateway") -}}
{{- end -}}
{{- $annotations := dict "checksum/config" (toYaml $read | sha256sum) -}}
{{- if and .root.Values.metrics.annotations (le (len (default list .stages)) 1) -}}
{{- $own := or (not (empty .stages)) .root.Values.gateway.metricsOwnPort -}}
{{- $port := ternary "metricsPort" "httpPort" $own -}}
{{- $_ := set $annotations "prometheus.io/scrape" "true" -}}
{{- $_ := set $annotations "prometheus.io/port" (include (printf "antiphon.%s" $port) .root) -}}
{{- $_ := set $annotations "prometheus.io/path" "/metrics" -}}
{{- end -}}
{{- mergeOverwrite $annotations .settings.podAnnotations | toYaml -}}
{{- end -}}

{{/*
The root is read-only: what writes to a home directory writes to /tmp. A random user has no entry in
/etc/passwd, so libraries take its name from USER.
*/}}
{{- define "antiphon.env" -}}
- name: HOME
  value: /tmp
- name: USER
  value: antiphon
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volume /tmp, which is bounded: a full one ends its own pod, not the node's others. */}}
{{- define "antiphon.tmpVolume" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .tmp.size }}
{{- end -}}

{{/*
Each service's own certificate. A folder: what is mounted by subPath is never renewed.
Arguments: root, roles (of the container, or of the pod).
*/}}
{{- define "antiphon.mutualTlsMounts" -}}
{{- if .root.Values.mutualTls.secretName -}}
{{- range $role := .roles }}
- {name: mutual-tls-{{ $role | replace "_" "-" }}, mountPath: {{ include "antiphon.mutualTlsPath" $role }}, readOnly: true}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "antiphon.mutualTlsVolumes" -}}
{{- if .root.Values.mutualTls.secretName -}}
{{- range $role := .roles }}
- name: mutual-tls-{{ $role | replace "_" "-" }}
  secret:
    secretName: {{ include "antiphon.mutualTlsSecret" (dict "root" $.root "role" $role) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret of a role. Arguments: root, role. */}}
{{- define "antiphon.mutualTlsSecret" -}}
{{- .root.Values.mutualTls.secretName | replace "{role}" (.role | replace "_" "-") -}}
{{- end -}}

{{/*
A PodDisruptionBudget: nodes are emptied one pod at a time, and a pod that is not ready stands in
nobody's way. Arguments: root, component, settings.
*/}}
{{- define "antiphon.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "antiphon.componentName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "antiphon.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .settings.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "antiphon.selectorLabels" . | nindent 6 }}
{{- end -}}
