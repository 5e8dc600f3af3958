{{- define "antiphon.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/*
Prefix of all names, at most 40 characters so that "-<role>" fits in a DNS label.
A longer one is cut and told apart by a hash.
*/}}
{{- define "antiphon.fullname" -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- $full = $full | replace "." "-" -}}
{{- if gt (len $full) 40 -}}
{{- $full = printf "%s-%s" ($full | trunc 31 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/* Name of a component's objects. Arguments: root, component. */}}
{{- define "antiphon.componentName" -}}
{{- printf "%s-%s" (include "antiphon.fullname" .root) (.component | replace "_" "-") -}}
{{- end -}}

{{/* Never changes during a release's life. Arguments: root, component. */}}
{{- define "antiphon.selectorLabels" -}}
app.kubernetes.io/name: {{ include "antiphon.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component | replace "_" "-" }}
{{- end -}}

{{/* Arguments: root, component. */}}
{{- define "antiphon.labels" -}}
{{ include "antiphon.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: antiphon
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* Arguments: root, image. */}}
{{- define "antiphon.image" -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
