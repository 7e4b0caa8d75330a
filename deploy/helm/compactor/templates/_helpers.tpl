{{- define "compactor.labels" -}}
app.kubernetes.io/name: compactor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "compactor.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "compactor.scheme" -}}
{{ if .Values.tls.existingSecret }}https{{ else }}http{{ end }}
{{- end }}

{{- define "compactor.brokerPort" -}}
{{ if .Values.tls.existingSecret }}{{ .Values.service.brokerTls }}{{ else }}{{ .Values.service.broker }}{{ end }}
{{- end }}

{{- define "compactor.database" -}}
- name: COMPACTOR_DATABASE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end }}

{{- define "compactor.key" -}}
{{- $variables := dict "public-key" "COMPACTOR_AUTH_TOKEN_PUBLIC_KEY" "secret-key" "COMPACTOR_AUTH_TOKEN_SECRET_KEY" "jwks" "COMPACTOR_AUTH_JWKS_FILE" -}}
- name: {{ get $variables .Values.auth.kind }}
  value: "{{ if ne .Values.auth.kind "jwks" }}file://{{ end }}/etc/compactor/keys/{{ .Values.auth.key }}"
{{- if .Values.auth.previousKey }}
- name: COMPACTOR_AUTH_TOKEN_PREVIOUS_SECRET_KEY
  value: "file:///etc/compactor/keys/{{ .Values.auth.previousKey }}"
{{- end }}
- name: COMPACTOR_AUTH_SUPERUSER_ROLES
  value: {{ join "," .Values.auth.superuserRoles | quote }}
{{- end }}

{{- define "compactor.ports" -}}
- name: COMPACTOR_PORT
  value: {{ .Values.service.http | quote }}
{{- if .Values.tls.existingSecret }}
- name: COMPACTOR_BROKER_SERVICE_PORT_TLS
  value: {{ .Values.service.brokerTls | quote }}
- name: COMPACTOR_BROKER_SERVICE_TLS_ONLY
  value: "true"
- name: COMPACTOR_TLS_CERTIFICATE
  value: /etc/compactor/tls/tls.crt
- name: COMPACTOR_TLS_KEY
  value: /etc/compactor/tls/tls.key
{{- with .Values.tls.caKey }}
- name: COMPACTOR_TLS_CA
  value: /etc/compactor/tls/{{ . }}
{{- end }}
{{- else }}
- name: COMPACTOR_BROKER_SERVICE_PORT
  value: {{ .Values.service.broker | quote }}
{{- end }}
{{- end }}

{{- define "compactor.environment" -}}
{{ include "compactor.database" . }}
- name: COMPACTOR_STORE
  value: {{ .Values.store.url | quote }}
{{- with .Values.store.endpoint }}
- name: COMPACTOR_S3_ENDPOINT
  value: {{ . | quote }}
{{- end }}
- name: COMPACTOR_SPARK_MASTER
  value: {{ .Values.spark.master | quote }}
{{- if .Values.spark.existingSecret }}
- name: SPARK_CONF_DIR
  value: /etc/compactor/spark
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "compactor.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "compactor.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}
